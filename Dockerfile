# The nodes of compose.yaml, Spark, and I2P routers.
# Behind a proxy that inspects TLS, pip needs its authority: the secret ca-bundle.
FROM python:3.11-slim AS node

# The volumes inherit the owner of these directories.
RUN useradd --system --no-create-home --home-dir /nonexistent garlicfarm \
    && install -d -m 0700 -o garlicfarm /var/lib/garlicfarm /farm/rank /farm/history \
        /farm/node-1 /farm/node-2 /farm/node-3 /farm/router /farm/router-1 /farm/router-2 /farm/router-3 \
        /farm/site /farm/site-1 /farm/site-2 /farm/site-3 /farm/tower /farm/store /farm/consumer

# The commit, which `garlicfarm --version` and `status` say: the history is not copied.
ARG GARLICFARM_REVISION
COPY . /src
RUN --mount=type=secret,id=ca-bundle,target=/run/secrets/ca-bundle \
    if [ -s /run/secrets/ca-bundle ]; then export PIP_CERT=/run/secrets/ca-bundle; fi; \
    pip install --no-cache-dir --root-user-action=ignore '/src[dafka]'

USER garlicfarm
WORKDIR /var/lib/garlicfarm
ENTRYPOINT ["garlicfarm"]
CMD ["node", "start"]

FROM node AS rank
USER root
ARG GARLICFARM_REVISION
RUN --mount=type=secret,id=ca-bundle,target=/run/secrets/ca-bundle \
    if [ -s /run/secrets/ca-bundle ]; then export PIP_CERT=/run/secrets/ca-bundle; fi; \
    pip install --no-cache-dir --root-user-action=ignore '/src[spark,java]'
USER garlicfarm
WORKDIR /farm/rank

# Debian's i2pd, with data and configuration in a volume. Only the node that shares its loopback uses I2PControl.
FROM node AS router
USER root
RUN apt-get -q update && apt-get -q install -y --no-install-recommends i2pd && rm -rf /var/lib/apt/lists/*
USER garlicfarm
ENTRYPOINT ["i2pd", "--datadir=/farm/router/data", "--log=stdout", "--i2pcontrol.address=127.0.0.1", "--httpproxy.port=4444", "--i2cp.port=7654"]
CMD []

FROM node
