# A bootstrap peer: introduces peers to each other and relays for those behind a NAT. No torch, no
# GPU. Build it from the repository's root:
#
#   docker build --file docker/bootstrap.Dockerfile --tag distro-node-bootstrap .
#
# The files of all packages have the hashes of bootstrap.lock. To fix the base image and the times in the layers,
# too: --build-arg BASE=python@sha256:… (docker buildx imagetools inspect python:3.13-slim-bookworm),
# --build-arg SOURCE_DATE_EPOCH=0 --output type=docker,rewrite-timestamp=true
ARG BASE=python:3.13-slim-bookworm
FROM ${BASE} AS build

# So that two builds give the same files: no paths of a build in compiled code, no times in bytecode.
ENV CFLAGS="-O2 -g0" PYTHONDONTWRITEBYTECODE=1 PYTHONHASHSEED=0

# The distribution's mirrors keep only the newest build of a package: a pinned one stops building.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev libgmp-dev \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/distro-node

WORKDIR /src
COPY pyproject.toml README.md LICENSE __init__.py docker/bootstrap.lock docker/node.lock ./
COPY crypto ./crypto
COPY protocol ./protocol
COPY node ./node
RUN --mount=type=cache,target=/var/cache/pip \
    /opt/distro-node/bin/pip install --cache-dir /var/cache/pip --no-compile \
        --require-hashes --requirement bootstrap.lock \
    && /opt/distro-node/bin/pip install --cache-dir /var/cache/pip --no-compile --no-deps . \
    && /opt/distro-node/bin/python3 -m compileall -q -f --invalidation-mode unchecked-hash /opt/distro-node


FROM ${BASE}

# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgmp10 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home --shell /usr/sbin/nologin distro \
    && install --directory --owner=distro --mode=0700 /var/lib/distro-node

COPY --from=build /opt/distro-node /opt/distro-node
ENV PATH=/opt/distro-node/bin:$PATH \
    DISTRO_NODE_DATA_DIR=/var/lib/distro-node

# By number, so that an orchestrator can see that it is not root.
USER 10001
WORKDIR /var/lib/distro-node
# The identity: peers know this bootstrap peer by it.
VOLUME /var/lib/distro-node
EXPOSE 4001
STOPSIGNAL SIGINT
HEALTHCHECK --interval=30s --timeout=10s --start-period=30s --retries=3 \
    CMD ["python3", "-c", "import socket; socket.create_connection(('127.0.0.1', 4001), 5)"]
ENTRYPOINT ["distro-node"]
CMD ["bootstrap", "--listen", "/ip4/0.0.0.0/tcp/4001"]
