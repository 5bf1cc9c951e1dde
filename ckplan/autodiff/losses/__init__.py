"""Losses, and the layers before them: what is minimised, and how its gradient takes least memory.

`loss` puts one behind a model, of whose scores `head` tells what they are, and `crossentropy` writes it. Where the
logits would be the largest tensor, they are made in chunks (`linear_cross_entropy`), for which `output_layer` finds
what makes them: in one pass where `known_slopes` tells the gradient in advance (`one_pass_head`), by a few numbers of
each row (`softmax_statistics`, `statistics_head`), or in parts of a table that is looked up as well (`tied_heads`).
"""
