"""The LightningModules that a client trains."""
