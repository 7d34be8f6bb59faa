"""For vLLM: a loader that it finds as a plugin, and chooses with --load-format trivet."""
