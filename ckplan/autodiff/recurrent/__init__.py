"""LSTM, GRU and RNN as loops of standard operators, forward and backward.

The fused nodes of these operators give no gates away, and their backward pass would have to compute all of them again.
So where a gradient is wanted the node becomes one Scan per direction, which costs no more than the fused kernel and
hands out what the gradient needs of each step; a second Scan runs back through time and gives the gradient of what goes
into the activations. The gradients of the weights, of the biases and of the input are one product over all steps
each, outside the loops.

Inside the loops tensors are held as (rows of gates, batch): the product of the weights with a narrow matrix then packs
the narrow matrix and not the weights, and gates are contiguous rows.
"""
