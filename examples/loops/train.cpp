// The loop in C++: g++ -std=c++17 -I HEADERS train.cpp LIBRARY -o train && ./train DIR BATCHES STEPS
#include <iostream>
#include <map>

#include "safetensors.hpp"

int main(int, char** argv) try {
  const Ort::Env env(ORT_LOGGING_LEVEL_ERROR);
  const std::string folder = argv[1];
  const Tensors checkpoint(folder + "/checkpoint.safetensors"), batches(argv[2]);
  Ort::Session training(env, (folder + "/training.onnx").c_str(), Ort::SessionOptions());
  Ort::Session update(env, (folder + "/update.onnx").c_str(), Ort::SessionOptions());
  Ort::AllocatorWithDefaultOptions allocator;
  const std::string loss = training.GetOutputNameAllocated(0, allocator).get();
  std::map<std::string, Ort::Value> values;
  for (size_t step = 0; step < std::stoul(argv[3]); step++) {
    for (Ort::Session* session : {&training, &update}) {
      Ort::IoBinding binding(*session);
      for (size_t i = 0; i < session->GetInputCount(); i++) {
        const std::string name = session->GetInputNameAllocated(i, allocator).get();
        const bool fed = batches.has(name);
        if (fed || !values.count(name))
          values.insert_or_assign(name, (fed ? batches : checkpoint).get(name, session->GetInputTypeInfo(i), step));
        binding.BindInput(name.c_str(), values.at(name));
      }
      for (size_t i = 0; i < session->GetOutputCount(); i++)
        binding.BindOutput(session->GetOutputNameAllocated(i, allocator).get(), allocator.GetInfo());
      session->Run({}, binding);
      auto names = binding.GetOutputNames();
      auto made = binding.GetOutputValues();
      for (size_t i = 0; i < names.size(); i++)  // what ends in _new is the next step's input
        values.insert_or_assign(names[i].substr(0, names[i].rfind("_new")), std::move(made[i]));
    }
    std::printf("%.9g\n", *values.at(loss).GetTensorData<float>());
  }
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
