"""Replaces vllm.transformers_utils."""
