// The loop in C#, over the package Microsoft.ML.OnnxRuntime: dotnet run DIR BATCHES STEPS
using System;
using System.Collections.Generic;
using System.Linq;
using System.Text.RegularExpressions;
using Microsoft.ML.OnnxRuntime;

static class Train {
  static readonly RunOptions options = new RunOptions();
  static readonly Dictionary<string, OrtValue> values = new Dictionary<string, OrtValue>();

  static void Put(string name, OrtValue value) {
    if (values.TryGetValue(name, out var old)) old.Dispose();
    values[name] = value;
  }

  static void Step(InferenceSession session, Tensors checkpoint, Tensors batches, int step) {
    foreach (var input in session.InputMetadata)
      if (batches.Has(input.Key)) Put(input.Key, batches.Get(input.Key, input.Value, step));
      else if (!values.ContainsKey(input.Key)) Put(input.Key, checkpoint.Get(input.Key, input.Value, 0));
    var inputs = session.InputNames.ToDictionary(name => name, name => values[name]);
    var made = session.Run(options, inputs, session.OutputNames);
    for (var i = 0; i < made.Count; i++)  // what ends in _new is the next step's input
      Put(Regex.Replace(session.OutputNames[i], "_new$", ""), made[i]);
  }

  static int Main(string[] words) {
    try {
      Tensors checkpoint = new Tensors(words[0] + "/checkpoint.safetensors"), batches = new Tensors(words[1]);
      var files = new[] { "/training.onnx", "/update.onnx" };
      var sessions = files.Select(file => new InferenceSession(words[0] + file)).ToArray();
      for (var step = 0; step < int.Parse(words[2]); step++) {
        foreach (var session in sessions) Step(session, checkpoint, batches, step);
        var loss = values[sessions[0].OutputNames[0]].GetTensorDataAsSpan<float>()[0];
        Console.WriteLine(FormattableString.Invariant($"{loss:G9}"));
      }
    } catch (Exception error) { Console.Error.WriteLine(error.Message); return 1; }
    return 0;
  }
}
