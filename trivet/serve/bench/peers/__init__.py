"""Other engines, measured beside this one: the same weights, cores and questions, in turn."""
