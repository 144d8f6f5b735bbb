# A member of a swarm, with PyTorch for CUDA. Build it from the repository's root:
#
#   docker build --file docker/node.Dockerfile --tag distro-node .
#
# CUDA 13, like the torch release in constraints.txt: NVIDIA driver 580 or newer on the host, and
# the NVIDIA Container Toolkit. Without a GPU the same image trains on the CPU.
#
# The files of all packages have the hashes of node.lock. To fix the base image and the times in the layers,
# too: --build-arg BASE=nvidia/cuda@sha256:… (docker buildx imagetools inspect nvidia/cuda:13.0.2-runtime-ubuntu24.04),
# --build-arg SOURCE_DATE_EPOCH=0 --output type=docker,rewrite-timestamp=true
ARG BASE=nvidia/cuda:13.0.2-runtime-ubuntu24.04
FROM ${BASE} AS build

# So that two builds give the same files: no paths of a build in compiled code, no times in bytecode.
ENV CFLAGS="-O2 -g0" PYTHONDONTWRITEBYTECODE=1 PYTHONHASHSEED=0

# The distribution's mirrors keep only the newest build of a package: a pinned one stops building.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libgmp-dev python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/distro-node

WORKDIR /src
COPY pyproject.toml README.md LICENSE __init__.py docker/bootstrap.lock docker/node.lock ./
COPY crypto ./crypto
COPY protocol ./protocol
COPY node ./node
# PyTorch's own tests hold files in the syntax of one Python each, which others cannot compile.
RUN --mount=type=cache,target=/var/cache/pip \
    /opt/distro-node/bin/pip install --cache-dir /var/cache/pip --no-compile \
        --require-hashes --requirement node.lock \
    && /opt/distro-node/bin/pip install --cache-dir /var/cache/pip --no-compile --no-deps . \
    && /opt/distro-node/bin/python3 -m compileall -q -f --invalidation-mode unchecked-hash \
        -x torch/testing/_internal /opt/distro-node


FROM ${BASE}

# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgmp10 python3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home --shell /usr/sbin/nologin distro \
    && install --directory --owner=distro --mode=0700 /var/lib/distro-node

COPY --from=build /opt/distro-node /opt/distro-node
ENV PATH=/opt/distro-node/bin:$PATH \
    DISTRO_NODE_DATA_DIR=/var/lib/distro-node

# By number, so that an orchestrator can see that it is not root.
USER 10001
WORKDIR /var/lib/distro-node
# Identity, ledger, blobs and momentum. Losing it means being somebody new in the swarm.
VOLUME /var/lib/distro-node
EXPOSE 4001
# What Ctrl-C sends: the node says goodbye to its swarm and stops.
STOPSIGNAL SIGINT
HEALTHCHECK --interval=30s --timeout=10s --start-period=5m --retries=3 \
    CMD ["distro-node", "status"]
ENTRYPOINT ["distro-node"]
CMD ["--help"]
