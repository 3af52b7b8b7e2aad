"""The stages of the core, the pass that runs them, its report and the preview."""
