"""The command `make compare-emulators`: this emulator beside Google's, by random programs."""
