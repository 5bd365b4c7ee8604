# The image of the operator (/manager) and of the worker (/worker). The local cluster makes the same one without Docker:
# both take their files from hack/image.
FROM --platform=$BUILDPLATFORM golang:1.26.8 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETARCH
RUN go run ./hack/image/cmd/image -rootfs /rootfs -arch "$TARGETARCH"

FROM scratch
COPY --from=build /rootfs/ /
ENV ZONEINFO=/zoneinfo.zip
USER 65532:65532
ENTRYPOINT ["/manager"]
