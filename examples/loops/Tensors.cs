// Reads what `ckplan artifacts` writes as its checkpoint, and batches in the same format.
using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Text;
using System.Text.RegularExpressions;
using Microsoft.ML.OnnxRuntime;

sealed class Tensors {
  readonly byte[] data;
  readonly int start;
  readonly Dictionary<string, Match> found = new Dictionary<string, Match>();

  public Tensors(string path) {
    data = File.ReadAllBytes(path);
    start = 8 + (int)BitConverter.ToInt64(data, 0);
    var header = Encoding.UTF8.GetString(data, 8, start - 8);
    foreach (Match match in Regex.Matches(header, "\"([^\"]+)\":{[^}]*\"data_offsets\":\\[(\\d+),(\\d+)\\]"))
      found[match.Groups[1].Value] = match;
  }

  public bool Has(string name) => found.ContainsKey(name);

  // A tensor like an input: the whole one of that name, or of several along a first axis the one of this step. What
  // the file does not have begins at zero.
  public OrtValue Get(string name, NodeMetadata like, int step) {
    var shape = like.Dimensions.Select(size => (long)size).ToArray();
    var value = OrtValue.CreateAllocatedTensorValue(OrtAllocator.DefaultInstance, like.ElementDataType, shape);
    var bytes = value.GetTensorMutableRawData();
    bytes.Clear();
    if (!Has(name)) return value;
    int begin = int.Parse(found[name].Groups[2].Value), end = int.Parse(found[name].Groups[3].Value);
    begin += step % ((end - begin) / bytes.Length) * bytes.Length;
    new Span<byte>(data, start + begin, bytes.Length).CopyTo(bytes);
    return value;
  }
}
