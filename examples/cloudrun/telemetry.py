"""Sends the metrics of userlock by OTLP/HTTP, once a minute, to OTEL_EXPORTER_OTLP_ENDPOINT."""

import uuid

from opentelemetry import metrics
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from userlock.contrib.opentelemetry import instrument


def report(outbox):
    """Report from now on: once in each worker. OTEL_SERVICE_NAME names the service."""
    process = Resource.create({"service.instance.id": str(uuid.uuid4())})  # its own time series
    reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    metrics.set_meter_provider(MeterProvider([reader], resource=process))  # sends the last at exit
    instrument(outbox=outbox)
