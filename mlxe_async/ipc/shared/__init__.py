"""What may be read while its writer is killed: bytes that processes map, and rules by which half a write is told."""
