# syntax=docker/dockerfile:1
#
# An image that runs one project (docs/install.md):
#
#     docker build --build-arg USER_ID="$(id -u)" -t strandline .
#     docker run --rm -v "$PWD/mine:/project" strandline
#
# tests/install runs its commands without Docker, and holds that what it copies is there.

# --- wheels of everything, by hash: two of the packages are published as source alone, one of them is a little C ------
FROM python:3.11-slim-bookworm AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends build-essential \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY requirements-build.lock requirements-image.lock ./
RUN python -m pip install --require-hashes -r requirements-build.lock
RUN python -m pip wheel --wheel-dir /wheels --require-hashes --no-build-isolation -r requirements-image.lock
COPY pyproject.toml LICENSE ./
COPY src src
RUN python -m pip wheel . --wheel-dir /wheels --no-deps --no-build-isolation

# --- what runs: no compiler, no checkout ------------------------------------------------------------------------------
FROM python:3.11-slim-bookworm
# The slim image has no directory for manual pages, and the JDK's package wants to put some there.
RUN mkdir -p /usr/share/man/man1 \
 && apt-get update \
 && apt-get install -y --no-install-recommends openjdk-17-jdk-headless tini \
 && rm -rf /var/lib/apt/lists/*
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    python -m pip install --no-cache-dir --no-index --find-links /wheels 'strandline[all]'
# As root, because the archive lies beside Python; it is made for this very Java and this very Spark.
WORKDIR /tmp
RUN strandline warm
# Spark wants a user that has a name, so a project's files should belong to this one, whose id is an argument.
ARG USER_ID=10001
RUN useradd --create-home --uid "$USER_ID" strandline \
 && install -d -o strandline /project
USER strandline
WORKDIR /project
# The build fails where Java, its module or the archive is not as it must be.
RUN strandline doctor
# tini reaps the workers of Spark, and hands on SIGTERM, at which `run` finishes its tick.
ENTRYPOINT ["tini", "--", "strandline"]
CMD ["run", "--project", "/project"]
