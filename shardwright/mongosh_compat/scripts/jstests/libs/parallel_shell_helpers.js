// funWithArgs is a global name of this shell.
