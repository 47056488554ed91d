"""Stock vLLM as an engine: the plug-in inside it, its launch, its models, its virtual time."""
