// configureFailPoint, configureFailPointForRS and kDefaultWaitForFailPointTimeout are global names of this shell.
