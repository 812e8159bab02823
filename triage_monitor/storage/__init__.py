"""The memory: the sidecar's store and recorded runs on disk."""
