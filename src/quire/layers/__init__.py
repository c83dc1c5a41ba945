"""The building blocks of models: modules that hold weights and call kernels."""
