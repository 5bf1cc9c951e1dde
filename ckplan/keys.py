"""Metadata keys that ckplan writes into ONNX files, in one place: several parts write them and others read them.

All values are text; those said to be JSON are JSON.
"""

from __future__ import annotations

PREFIX = "pkg.ckplan."
"""All metadata keys of ckplan begin with this."""

# -- of nodes ----------------------------------------------------------------------------------------------------------

PHASE = PREFIX + "phase"
"""``forward`` or ``backward``."""
ROLE = PREFIX + "role"
"""``control`` for the nodes of a control edge, ``recompute`` for a repeated node, `RESERVATION`, `PLACE`."""
RESERVATION = "reservation"
"""The role of a node that makes a tensor first, so that the arena takes regions of certain sizes."""
PLACE = "place"
"""The role of a node that makes a tensor first, in whose place another one is to lie."""
RECOMPUTE_OF = PREFIX + "recompute_of"
"""Of a repeated node: the name of the node that it repeats."""
ONCE = PREFIX + "once"
"""Of a node that no plan runs again, as what it makes must be kept: why, in a word."""
PADDING_ROW = PREFIX + "padding_row"
"""Of a Gather: the row of its table that gets no gradient of what is looked up."""
DETACHED = PREFIX + "detached"
"""Of a forward node: JSON list of the inputs at which gradients stop, by number."""
STORE = PREFIX + "store"
"""Of a control-flow or recurrent node: JSON list of patterns of what is kept of each step."""
PIECES = PREFIX + "pieces"
"""Of a Scan that runs a region in pieces: their number."""
NOT_EXPANDED = PREFIX + "not_expanded"
"""Of a node of com.microsoft that is not written in standard operators: why."""
KEEPS = PREFIX + "keeps"
"""Of a node that makes such activations (see `KEPT`): their names and bytes."""

# -- of values ---------------------------------------------------------------------------------------------------------

KEPT = PREFIX + "kept"
"""Of an activation that a planned file keeps for the backward pass, or for nodes that run again: its bytes."""
SHAPE = PREFIX + "shape"
"""Of a value whose shape a planned file does not declare: its dimensions, as ``64x128``."""
CONSTANT = PREFIX + "constant"
"""Of an initializer that is a literal of the program: where it came from."""
DATA_SIZED = PREFIX + "data_sized"
"""Of a value whose size follows from the data when the model runs: the node that counts."""
FILLED = PREFIX + "filled"
"""Of an initializer that a ConstantOfShape of the file makes, with no value."""
STANDS_FOR = PREFIX + "stands_for"
"""Of an initializer that torch's exporter computed: the parameter that it holds, empty if it holds none."""
SPARSE = PREFIX + "sparse"
"""Of an initializer that was sparse in the file: how many of its elements stood there."""
SCORES = PREFIX + "scores"
"""Of an output that holds the scores of classes: that it was a map in the file."""
FROZEN = PREFIX + "frozen"
"""Of an initializer that is a parameter and not trained by default: why."""

# -- of forward models -------------------------------------------------------------------------------------------------

OWN_GRADIENTS = PREFIX + "own_gradients"
"""JSON list of the functions of a torch module that have a gradient of their own, which the file has not."""
REMOVED_DROPOUTS = PREFIX + "removed_dropouts"
"""How many Dropout nodes in inference form were removed when the file was loaded. It stays in what is written of such a
model, as `UNREAD` does: without it, that file would be trained without dropout, and nobody told."""
UNREAD = PREFIX + "unread"
"""JSON list of the parameters of the file that no output depends on, which were removed when it was loaded."""
RULED_OUT = PREFIX + "ruled_out"
"""JSON list of those among them that outputs depend on where inputs are not set as they were."""

SET = PREFIX + "set"
"""JSON object: the number, or numbers, that an input of the file was set to, by the name of the input."""

# -- of training graphs ------------------------------------------------------------------------------------------------

LOSS = PREFIX + "loss"
"""Name of the loss."""
PARAMETERS = PREFIX + "parameters"
"""JSON list of the parameters that have a gradient."""
GRADIENTS = PREFIX + "gradients"
"""JSON object: name of the gradient by name of the parameter."""
RETAINED = PREFIX + "retained_gradients"
"""JSON object: name of the gradient by name of the graph input or activation."""
OBJECTIVE = PREFIX + "objective"
"""JSON list of the losses as they were asked for, empty where the loss was chosen."""
LOSS_SCALE = PREFIX + "loss_scale"
"""The factor of the loss in the backward pass, or the name of the input that holds it."""
CHUNKS = PREFIX + "chunks"
"""JSON list of the regions that run in pieces, each a sentence."""

UPDATES = PREFIX + "updates"
"""JSON object: name of the output with the new value by name of the input that takes it in the next step."""
STATES = PREFIX + "states"
"""JSON list of the inputs that hold an optimizer's states: all zero before the first step."""
IN_PLACE = PREFIX + "in_place"
"""``true`` if each output of `UPDATES` may be written into the memory of the input that it is for: whatever reads the
old value has run by then, in any order that onnxruntime may choose."""
LEARNING_RATE = PREFIX + "learning_rate"
"""Name of the input that holds the learning rate."""
LORA = PREFIX + "lora"
"""JSON object: rank, alpha and targets of the adapters that are trained in place of the model's own parameters."""
OPTIMIZER = PREFIX + "optimizer"
"""The optimizer with its options."""

# -- of files to be planned and of planned files -----------------------------------------------------------------------

CHECKPOINTS = PREFIX + "checkpoints"
"""JSON list of the tensors that the `list` strategy keeps by default."""
VERSION = PREFIX + "version"
"""The version of ckplan that wrote the file."""
BUDGET = PREFIX + "budget"
"""Bytes that the plan was not to exceed; absent if there was no budget."""
BUDGET_OF = PREFIX + "budget_of"
"""``total`` where the budget is of all that a process holds, ``arena`` where it is of what onnxruntime's arena does;
absent where it is of activations."""
STRATEGY = PREFIX + "strategy"
"""The strategy with its options."""
PLAN = PREFIX + "plan"
"""JSON of the plan."""
RECOMPUTED = PREFIX + "recomputed"
"""Number of nodes that run again."""
CONTROL_EDGES = PREFIX + "control_edges"
"""Number of control edges."""
PREDICTED_ACTIVATIONS = PREFIX + "predicted_peak_activations"
"""Bytes of activations at the peak that the file promises."""
PREDICTED_TOTAL = PREFIX + "predicted_peak_total"
"""Bytes of everything at the peak that the file promises."""

# -- of inputs ---------------------------------------------------------------------------------------------------------

CLASSES = PREFIX + "classes"
"""Of an input: the number of classes that its labels stand for."""
IGNORED_LABEL = PREFIX + "ignored_label"
"""Of an input with `CLASSES` whose every element a loss reads: the label that does not count, empty if all count."""
CLASS_WEIGHTS = PREFIX + "class_weights"
"""Of an input with `CLASSES`: "true" where a mean of losses is one by weights of its classes."""
LABELS = PREFIX + "labels"
"""Of a model: a JSON object of label inputs and their numbers of classes."""
