"""OpenVINO: a folder with graph, weights and metadata, run by OpenVINO on a CPU."""
