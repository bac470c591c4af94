# The nodes of compose.yaml, and Spark beside them. Where TLS is inspected, pip needs the authority: the secret ca-bundle.
FROM python:3.11-slim AS node

# The volumes take their owner from these directories.
RUN useradd --system --no-create-home --home-dir /nonexistent garlicfarm \
    && install -d -m 0700 -o garlicfarm /var/lib/garlicfarm /farm/node-1 /farm/node-2 /farm/node-3 /farm/rank

COPY . /src
RUN --mount=type=secret,id=ca-bundle,target=/run/secrets/ca-bundle \
    if [ -s /run/secrets/ca-bundle ]; then export PIP_CERT=/run/secrets/ca-bundle; fi; \
    pip install --no-cache-dir --root-user-action=ignore /src

USER garlicfarm
WORKDIR /var/lib/garlicfarm
ENTRYPOINT ["garlicfarm"]
CMD ["node", "start"]

FROM node AS rank
USER root
RUN --mount=type=secret,id=ca-bundle,target=/run/secrets/ca-bundle \
    if [ -s /run/secrets/ca-bundle ]; then export PIP_CERT=/run/secrets/ca-bundle; fi; \
    pip install --no-cache-dir --root-user-action=ignore '/src[spark,java]'
USER garlicfarm
WORKDIR /farm/rank

FROM node
