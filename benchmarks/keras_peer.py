"""One side of `benchmarks.keras_files`: networks of Keras, their files by tf2onnx and TensorFlow's own gradients.

    python benchmarks/keras_peer.py FOLDER [NETWORK ...]

TensorFlow 2.15 and tf2onnx 1.16.1 want older packages than ckplan, hence a virtual environment of its own;
`benchmarks/keras_files.py` says how to make it. This file imports nothing of ckplan. For each network it writes
`NETWORK.onnx`, and `NETWORK.npz` with inputs (`x0`, ...), the target of a mean squared error, the loss, and value and
gradient of each variable (`value/NAME`, `gradient/NAME`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf
import tf2onnx
from tensorflow import keras

BATCH = 2
layers, applications = keras.layers, keras.applications


def application(kind: Callable[..., Any], side: int = 64) -> Callable[[], Any]:
    """A network of `keras.applications`."""
    return lambda: kind(weights=None, input_shape=(side, side, 3), classes=10, classifier_activation=None)


def stack(shape: tuple[int, ...], *members: Any, dtype: str | None = None) -> Callable[[], Any]:
    """Layers one behind the other."""
    return lambda: keras.Sequential([keras.Input(shape, dtype=dtype), *members])


def function(shapes: list[tuple[int, ...]], body: Callable[..., Any], dtype: str | None = None) -> Callable[[], Any]:
    """A network of inputs of some shapes."""

    def build() -> Any:
        inputs = [keras.Input(shape, dtype=dtype) for shape in shapes]
        return keras.Model(inputs, body(*inputs))

    return build


def decoder(tokens: Any) -> Any:
    """Two layers of causal self-attention."""
    x = layers.Embedding(100, 32)(tokens)
    for _ in range(2):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 8)(x, x, use_causal_mask=True))
        hidden = layers.Dense(64, activation="gelu")(x)
        x = layers.LayerNormalization()(x + layers.Dropout(0.1)(layers.Dense(32)(hidden)))
    return layers.Dense(100)(x)


def unet(x: Any) -> Any:
    """Two levels down and up again."""
    kept = []
    for channels in (8, 16):
        x = layers.Conv2D(channels, 3, padding="same", activation="relu")(x)
        kept.append(x)
        x = layers.MaxPool2D()(x)
    x = layers.Conv2D(32, 3, padding="same", activation="relu")(x)
    for channels, skip in zip((16, 8), reversed(kept), strict=True):
        x = layers.Concatenate()([layers.Conv2DTranspose(channels, 2, strides=2, padding="same")(x), skip])
        x = layers.Conv2D(channels, 3, padding="same", activation="relu")(x)
    return layers.Conv2D(4, 1)(x)


def positions(tokens: Any) -> Any:
    """Embeddings of tokens and of their places."""
    place = layers.Lambda(lambda x: tf.range(tf.shape(x)[-1])[None, :] + 0 * x)(tokens)
    return layers.Dense(7)(layers.Embedding(30, 8)(tokens) + layers.Embedding(10, 8)(place))


def attention(query: Any, value: Any) -> Any:
    """Both of Keras' plain attentions."""
    both = layers.Attention(use_scale=True)([query, value]) + layers.AdditiveAttention()([query, value])
    return layers.Dense(2)(layers.GlobalAveragePooling1D()(both))


def repeated(x: Any) -> Any:
    """One layer in a `while` loop of TensorFlow's."""
    layer = layers.Dense(4, activation="tanh")
    layer.build((None, 4))

    def run(start: Any) -> Any:
        return tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, layer(h)), [tf.constant(0), start])[1]

    class Repeat(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def call(self, start: Any) -> Any:
            return run(start)

    return layers.Dense(2)(Repeat()(x))


def chosen(x: Any) -> Any:
    """The largest, sorted and by segments."""
    y = layers.Dense(5)(x)

    def mix(y: Any) -> Any:
        segments = tf.math.segment_sum(tf.transpose(y), tf.constant([0, 0, 1, 1, 2]))
        return tf.math.top_k(y, 3).values + tf.sort(y, axis=-1)[..., :3] + segments[:1, :1]

    return layers.Dense(2)(layers.Lambda(mix)(y))


NETWORKS: dict[str, Callable[[], Any]] = {
    "mobilenet": application(applications.MobileNet),
    "mobilenet_v2": application(applications.MobileNetV2),
    "mobilenet_v3": application(applications.MobileNetV3Small),
    "resnet50": application(applications.ResNet50),
    "resnet50_v2": application(applications.ResNet50V2),
    "densenet": application(applications.DenseNet121),
    "nasnet": application(applications.NASNetMobile),
    "efficientnet": application(applications.EfficientNetB0),
    "efficientnet_v2": application(applications.EfficientNetV2B0),
    "inception": application(applications.InceptionV3, 96),
    "xception": application(applications.Xception, 96),
    "decoder": function([(16,)], decoder, "int32"),
    "unet": function([(32, 32, 3)], unet),
    "lstm": stack((12, 8), layers.LSTM(16, return_sequences=True), layers.LSTM(8), layers.Dense(3)),
    "gru": stack((12, 8), layers.GRU(16, return_sequences=True), layers.GRU(8), layers.Dense(3)),
    "simple_rnn": stack((12, 8), layers.SimpleRNN(16), layers.Dense(3)),
    "masked_lstm": stack(
        (12,), layers.Embedding(50, 8, mask_zero=True), layers.Bidirectional(layers.LSTM(16)), layers.Dense(3),
        dtype="int32",
    ),
    "masked_gru": stack(
        (8,), layers.Embedding(30, 6, mask_zero=True), layers.GRU(5, return_sequences=True), layers.LSTM(4),
        layers.Dense(2), dtype="int32",
    ),
    "backwards": stack(
        (9, 5), layers.LSTM(6, go_backwards=True, return_sequences=True), layers.GRU(5, reset_after=False),
        layers.Dense(2),
    ),
    "stacked_cells": stack(
        (7, 5), layers.RNN(layers.StackedRNNCells([layers.LSTMCell(4), layers.GRUCell(3)]), return_sequences=True),
        layers.Dense(2),
    ),
    "conv_lstm": stack((5, 16, 16, 2), layers.ConvLSTM2D(4, 3, padding="same"), layers.Flatten(), layers.Dense(2)),
    "while": function([(4,)], repeated),
    "conv1d": stack(
        (40, 4), layers.Conv1D(8, 3, padding="causal", activation="elu"), layers.MaxPool1D(),
        layers.Conv1D(8, 3, dilation_rate=2, activation="selu"), layers.GlobalMaxPool1D(), layers.Dense(2),
    ),
    "separable1d": stack(
        (20, 4), layers.SeparableConv1D(6, 3, dilation_rate=2), layers.DepthwiseConv1D(3, padding="same"),
        layers.AveragePooling1D(3, 2, padding="same"), layers.MaxPool1D(3, 2, padding="same"), layers.Flatten(),
        layers.Dense(2),
    ),
    "conv3d": stack(
        (8, 8, 8, 2), layers.Conv3D(4, 3, padding="same", activation="relu"), layers.MaxPool3D(),
        layers.GlobalAveragePooling3D(), layers.Dense(2),
    ),
    "transposed3d": stack(
        (4, 4, 4, 2), layers.Conv3DTranspose(3, 3, strides=2, padding="same"), layers.UpSampling3D(),
        layers.AveragePooling3D(), layers.Flatten(), layers.Dense(2),
    ),
    "resized": stack(
        (8, 8, 3), layers.Conv2D(4, 3), layers.BatchNormalization(),
        layers.ReLU(max_value=6.0, negative_slope=0.1, threshold=0.2),
        layers.Conv2DTranspose(3, 3, strides=2, padding="same", output_padding=1), layers.Resizing(9, 9),
        layers.Flatten(), layers.Dense(2, activation="sigmoid"),
    ),
    "normalised": stack(
        (16, 16, 3), layers.Conv2D(8, 3), layers.PReLU(shared_axes=[1, 2]), layers.GroupNormalization(4),
        layers.UnitNormalization(), layers.GlobalAveragePooling2D(), layers.Dense(3),
    ),
    "activations": stack(
        (12,), layers.Dense(8, activation="softplus"), layers.Dense(8, activation="hard_sigmoid"),
        layers.Dense(8, activation="exponential"), layers.Dense(8, activation="softsign"),
        layers.Dense(3, activation="softmax"),
    ),
    "einsum": stack(
        (6, 8), layers.EinsumDense("abc,cde->abde", output_shape=(None, 2, 3)), layers.Reshape((6, 6)),
        layers.Conv1DTranspose(4, 3, strides=2), layers.LayerNormalization(axis=[1, 2]),
        layers.GlobalAveragePooling1D(), layers.Dense(2),
    ),
    "locally_connected": stack(
        (10, 4), layers.LocallyConnected1D(4, 3), layers.Flatten(), layers.RepeatVector(4),
        layers.TimeDistributed(layers.Dense(3)), layers.Permute((2, 1)), layers.Flatten(), layers.Dense(1),
    ),
    "attention": function([(6, 8), (9, 8)], attention),
    "positions": function([(10,)], positions, "int32"),
    "chosen": function([(4,)], chosen),
}  # fmt: skip


def write(name: str, folder: Path) -> None:
    """Write a network's file and TensorFlow's gradients."""
    keras.utils.set_random_seed(0)
    model = NETWORKS[name]()
    rng = np.random.default_rng(0)
    for variable in model.trainable_variables:  # so that no two are alike, biases included
        variable.assign_add((0.01 * rng.standard_normal(variable.shape)).astype("float32"))
    signature = [tf.TensorSpec([BATCH, *x.shape[1:]], x.dtype, name=f"x{i}") for i, x in enumerate(model.inputs)]
    tf2onnx.convert.from_keras(model, input_signature=signature, opset=17, output_path=str(folder / f"{name}.onnx"))
    inputs = [
        rng.integers(0, 20, spec.shape).astype("int32") if spec.dtype.is_integer else rng.standard_normal(spec.shape)
        for spec in signature
    ]
    inputs = [array.astype(spec.dtype.as_numpy_dtype) for array, spec in zip(inputs, signature, strict=True)]
    fed = inputs if len(inputs) > 1 else inputs[0]
    target = rng.standard_normal(model(fed, training=False).shape).astype("float32")
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(fed, training=False) - target) ** 2)
    arrays = {f"x{index}": array for index, array in enumerate(inputs)} | {"target": target, "loss": loss.numpy()}
    variables = model.trainable_variables
    for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
        if gradient is not None:
            arrays[f"value/{variable.name}"] = variable.numpy()
            arrays[f"gradient/{variable.name}"] = tf.convert_to_tensor(gradient).numpy()
    np.savez(folder / f"{name}.npz", **arrays)


if __name__ == "__main__":
    for chosen_name in sys.argv[2:] or NETWORKS:
        write(chosen_name, Path(sys.argv[1]))
        print(chosen_name, flush=True)
