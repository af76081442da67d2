"""The rules that the emulators check, by provider. The ids are those of the collected rules of providers."""
