# FedFacet and all that its tests need, in an image. It has the README's two commands:
#
#   docker build -t fedfacet .
#   docker run --rm --init -v "$PWD/logs:/fedfacet/logs" fedfacet make train ARGS="selector=uniform"
#   docker run --rm fedfacet make test
#
# With CUDA, the libraries of which come with PyTorch's usual wheels; the machine needs NVIDIA's driver and container toolkit:
#
#   docker run --rm --gpus all fedfacet make train ARGS="engine.device=cuda"

ARG BASE=python:3.11-slim-bookworm
# hadolint ignore=DL3006
FROM ${BASE} AS system
# git: a run writes down the commit that it ran with, where there is one.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends git make && rm -rf /var/lib/apt/lists/*
# The folder first, then the user: what a run writes belongs to who runs it, whose number --user may change.
RUN useradd --create-home --uid 1000 fedfacet && install -d -o fedfacet -g fedfacet /fedfacet /fedfacet/logs /fedfacet/data
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
USER 1000
WORKDIR /fedfacet

FROM system
# What is installed depends on these alone, so that a change of the code installs nothing anew.
COPY --chown=fedfacet pyproject.toml requirements.lock Makefile README.md LICENSE ./
COPY --chown=fedfacet src/fedfacet/__init__.py src/fedfacet/
# The usual build of PyTorch has CUDA and 6 GB. PyTorch's installation page names an index of builds for the CPU alone, which are
# half a GB: --build-arg TORCH_INDEX=INDEX. That index then gives PyTorch and nothing else, and all else comes by its sha256.
ARG TORCH_INDEX=
RUN if [ -n "${TORCH_INDEX}" ]; then \
      python -m venv .venv \
      && .venv/bin/python -m pip install --index-url "${TORCH_INDEX}" --no-deps $(grep -oE '^torch(vision)?==[^ ]+' requirements.lock) \
      && awk '/^[a-z]/ {cuda = /^(cuda-|nvidia-|triton)/} !cuda' requirements.lock > .venv/lock \
      && make .venv/.installed LOCK=.venv/lock; \
    else make .venv/.installed; fi
COPY --chown=fedfacet . .
# Files of a context may be newer than those of a layer that was kept, and make would install again.
RUN touch .venv/.installed
CMD ["make", "train"]
