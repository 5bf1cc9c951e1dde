// Reads what `ckplan artifacts` writes as its checkpoint, and batches in the same format.
#pragma once
#include <onnxruntime_cxx_api.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

struct Tensors {
  std::string header, numbers;

  explicit Tensors(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    if (text.size() < 8) throw std::runtime_error("cannot read " + path);
    const size_t size = *reinterpret_cast<const uint64_t*>(text.data());
    header = text.substr(8, size);
    numbers = text.substr(8 + size);
  }

  bool has(const std::string& name) const { return header.find('"' + name + "\":{") != std::string::npos; }

  // A tensor like an input: the whole one of that name, or of several along a first axis the one of this step. What the
  // file does not have begins at zero.
  Ort::Value get(const std::string& name, const Ort::TypeInfo& like, size_t step) const {
    const auto info = like.GetTensorTypeAndShapeInfo();
    const auto shape = info.GetShape();
    const auto type = info.GetElementType();
    auto value = Ort::Value::CreateTensor(Ort::AllocatorWithDefaultOptions(), shape.data(), shape.size(), type);
    const size_t size = info.GetElementCount() * (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 ? 8 : 4);
    std::memset(value.GetTensorMutableRawData(), 0, size);
    if (!has(name)) return value;
    size_t begin, end;
    const char* place = &header[header.find("data_offsets", header.find('"' + name + "\":{"))];
    if (std::sscanf(place, "data_offsets\":[%zu,%zu", &begin, &end) != 2) throw std::runtime_error("a damaged header");
    std::memcpy(value.GetTensorMutableRawData(), &numbers[begin + step % ((end - begin) / size) * size], size);
    return value;
  }
};
