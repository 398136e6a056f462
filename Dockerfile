# Gristmill for CPUs, with compiled kernels and without root:
#   docker build -t gristmill .
#   docker run --rm -v "$PWD:/data" --user "$(id -u):$(id -g)" gristmill run english crawl/ clean/
# Extras: docker build --build-arg EXTRAS=web,unicode -t gristmill .
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
COPY tools tools
RUN python3 -m venv /env \
    && /env/bin/pip install --quiet --no-cache-dir -c constraints.txt -e . \
    && /env/bin/python -m tools.build_kernels \
    && /env/bin/pip wheel --quiet --no-cache-dir --no-deps --wheel-dir /dist . \
    && cp constraints.txt /dist
ARG EXTRAS=""
RUN python3 -m venv /opt/gristmill \
    && /opt/gristmill/bin/pip install --quiet --no-cache-dir -c /dist/constraints.txt \
        "$(ls /dist/gristmill-*.whl)${EXTRAS:+[$EXTRAS]}" \
    && /opt/gristmill/bin/pip uninstall --quiet --yes pip setuptools

FROM ${BASE}
COPY --from=build /opt/gristmill /opt/gristmill
ENV PATH=/opt/gristmill/bin:$PATH
RUN useradd --uid 1000 --create-home gristmill && mkdir /data && chown gristmill /data
USER gristmill
WORKDIR /data
ENTRYPOINT ["gristmill"]
CMD ["--help"]
