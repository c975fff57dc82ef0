"""The renderers, the rendered-token cache, and the strategies that feed them."""
