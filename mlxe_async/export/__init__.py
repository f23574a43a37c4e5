"""The way out: a saved policy as files that other programs read.

`onnx_file` writes a graph that ONNX Runtime evaluates, `card` a folder with a model card for the Hugging Face hub,
`picture` the network with its sizes; `entries` says what goes into an exported policy. What a run logged is exported by
`analysis.exporters`.
"""
