"""The read side without I/O: arguments, what is sent to the shards, and how their answers become one."""
