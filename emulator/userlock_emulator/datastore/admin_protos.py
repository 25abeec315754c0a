"""The plain protobuf classes of `google.datastore.admin.v1`. See `protos`."""

from typing import Any

from google.cloud.datastore_admin_v1.types import datastore_admin as _admin
from google.cloud.datastore_admin_v1.types import index as _index


def _plain(wrapper: Any) -> Any:
    return wrapper.meta.pb


CommonMetadata = _plain(_admin.CommonMetadata)
CreateIndexRequest = _plain(_admin.CreateIndexRequest)
DeleteIndexRequest = _plain(_admin.DeleteIndexRequest)
EntityFilter = _plain(_admin.EntityFilter)
ExportEntitiesMetadata = _plain(_admin.ExportEntitiesMetadata)
ExportEntitiesRequest = _plain(_admin.ExportEntitiesRequest)
ExportEntitiesResponse = _plain(_admin.ExportEntitiesResponse)
GetIndexRequest = _plain(_admin.GetIndexRequest)
ImportEntitiesMetadata = _plain(_admin.ImportEntitiesMetadata)
ImportEntitiesRequest = _plain(_admin.ImportEntitiesRequest)
Index = _plain(_index.Index)
IndexOperationMetadata = _plain(_admin.IndexOperationMetadata)
ListIndexesRequest = _plain(_admin.ListIndexesRequest)
ListIndexesResponse = _plain(_admin.ListIndexesResponse)

EXPORT_ENTITIES = int(_admin.OperationType.EXPORT_ENTITIES)
IMPORT_ENTITIES = int(_admin.OperationType.IMPORT_ENTITIES)
CREATE_INDEX = int(_admin.OperationType.CREATE_INDEX)
DELETE_INDEX = int(_admin.OperationType.DELETE_INDEX)
