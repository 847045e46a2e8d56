// Thread and CountDownLatch are global names of this shell.
