# The image of compose.yaml's gateway and node.
FROM python:3.11-slim
WORKDIR /millrace
COPY requirements/node.lock requirements/node.lock
RUN pip install --no-cache-dir --require-hashes -r requirements/node.lock \
    && pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu torch==2.13.0
COPY . .
RUN pip install --no-cache-dir --no-deps --no-build-isolation . \
    && useradd --create-home millrace && mkdir --mode 700 /data && chown millrace /data
USER millrace
ENV MILLRACE_DATA_DIR=/data
VOLUME /data
ENTRYPOINT ["millrace"]
