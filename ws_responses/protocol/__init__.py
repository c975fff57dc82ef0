"""The wire and the state of a connection, without I/O."""
