"""Items to tokens or chat messages: the renderers, and what is kept of their work along a chain."""
