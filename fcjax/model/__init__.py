"""What is computed: sizes, parameters, maths, the unsharded reference, and the weights on disk."""
