"""The plain protobuf classes of `google.datastore.admin.v1`. See `protos`."""

from google.cloud.datastore_admin_v1.types import datastore_admin as _admin
from google.cloud.datastore_admin_v1.types import index as _index

from userlock_emulator.datastore.protos import plain

CommonMetadata = plain(_admin.CommonMetadata)
CreateIndexRequest = plain(_admin.CreateIndexRequest)
DeleteIndexRequest = plain(_admin.DeleteIndexRequest)
EntityFilter = plain(_admin.EntityFilter)
ExportEntitiesMetadata = plain(_admin.ExportEntitiesMetadata)
ExportEntitiesRequest = plain(_admin.ExportEntitiesRequest)
ExportEntitiesResponse = plain(_admin.ExportEntitiesResponse)
GetIndexRequest = plain(_admin.GetIndexRequest)
ImportEntitiesMetadata = plain(_admin.ImportEntitiesMetadata)
ImportEntitiesRequest = plain(_admin.ImportEntitiesRequest)
Index = plain(_index.Index)
IndexOperationMetadata = plain(_admin.IndexOperationMetadata)
ListIndexesRequest = plain(_admin.ListIndexesRequest)
ListIndexesResponse = plain(_admin.ListIndexesResponse)

EXPORT_ENTITIES = int(_admin.OperationType.EXPORT_ENTITIES)
IMPORT_ENTITIES = int(_admin.OperationType.IMPORT_ENTITIES)
CREATE_INDEX = int(_admin.OperationType.CREATE_INDEX)
DELETE_INDEX = int(_admin.OperationType.DELETE_INDEX)
