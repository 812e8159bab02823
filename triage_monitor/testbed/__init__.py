"""The small real training: GRPO under emulated NVFP4, whose gaps come from arithmetic alone."""
