"""Tests of the files that packages install besides the programs."""
