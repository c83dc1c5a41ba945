"""Functions on tensors: a plain twin of each, and a fast version where a device needs one."""
