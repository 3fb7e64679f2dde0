# geomx, for CPUs or for NVIDIA's GPUs: docker build -t geomx .
#                                     docker build -t geomx-cuda --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu126 .
# It runs as nobody; a run's files are mounted into /run/geomx, or at any other place that the command names.
ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/geomx
ENV PATH=/opt/geomx/bin:$PATH
# PyTorch first: it changes seldom, and is the largest layer.
RUN pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" "torch>=2.6,<2.14" numpy
WORKDIR /src
COPY pyproject.toml README.md LICENSE hatch_build.py ./
COPY src src
RUN pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" ".[examples]"

FROM python:${PYTHON}-slim
COPY --from=build /opt/geomx /opt/geomx
ENV PATH=/opt/geomx/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
RUN mkdir -p /run/geomx && chown 65534:65534 /run/geomx
USER 65534:65534
WORKDIR /run/geomx
# SIGTERM would have a node leave its run for good.
STOPSIGNAL SIGKILL
ENTRYPOINT ["geomx"]
CMD ["--help"]
