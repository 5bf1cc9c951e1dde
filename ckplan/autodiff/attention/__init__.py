"""Attentions in pieces, so that scores and their softmax never exist whole.

`pattern` finds them in a forward graph, `heads` and `queries` say what a piece is, `replacement` has what is the same
for both, and `pieces` does it for all of a graph.
"""
