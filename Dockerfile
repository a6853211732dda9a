# The image of compose.yaml's gateway and node.
# With a digest: docker build --build-arg PYTHON_IMAGE=python:3.11-slim@sha256:..., from `docker buildx imagetools inspect python:3.11-slim`
ARG PYTHON_IMAGE=python:3.11-slim
FROM ${PYTHON_IMAGE}
WORKDIR /millrace
COPY requirements/node.lock requirements/torch.lock requirements/
RUN pip install --no-cache-dir --require-hashes -r requirements/node.lock \
    && pip install --no-cache-dir --no-deps --require-hashes --extra-index-url https://download.pytorch.org/whl/cpu -r requirements/torch.lock
COPY . .
RUN pip install --no-cache-dir --no-deps --no-build-isolation . \
    && useradd --create-home millrace && mkdir --mode 700 /data && chown millrace /data
USER millrace
ENV MILLRACE_DATA_DIR=/data
VOLUME /data
ENTRYPOINT ["millrace"]
