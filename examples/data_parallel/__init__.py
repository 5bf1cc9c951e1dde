"""Several processes train one model, each on its share of the batch: an all-reduce between gradients and update."""
