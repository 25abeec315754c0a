# A site on Cloud Run as ../cloudrun has it, from an empty project: network, Memorystore for Valkey,
# accounts with their roles, Datastore, the outbox's queue and relay, the service, the operator's job.
# It has been checked without a cloud only.
#
#   terraform init
#   terraform apply -var project=PROJECT -var image=REGION-docker.pkg.dev/PROJECT/apps/points@sha256:DIGEST

terraform {
  required_version = ">= 1.5"
  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 6.30, < 8"
    }
  }
}

provider "google" {
  project = var.project
  region  = var.region
}

data "google_project" "this" {
  depends_on = [google_project_service.apis]
}

locals {
  # Cloud Run's deterministic URL: the queue's address has it before the service exists.
  site   = "https://${var.name}-${data.google_project.this.number}.${var.region}.run.app"
  prefix = "${var.name}-production"
  valkey = google_memorystore_instance.locks.endpoints[0].connections[0].psc_auto_connection[0]
  store  = "valkey://${local.valkey.ip_address}:${local.valkey.port}/0?prefix=${local.prefix}"
  queue  = "cloudtasks://${var.project}/${var.region}/${google_cloud_tasks_queue.jobs.name}?target=${local.site}&service_account=${google_service_account.jobs.email}"
  apis = [
    "cloudscheduler.googleapis.com",
    "cloudtasks.googleapis.com",
    "compute.googleapis.com",
    "firestore.googleapis.com",
    "iam.googleapis.com",
    "memorystore.googleapis.com",
    "networkconnectivity.googleapis.com",
    "run.googleapis.com",
    "secretmanager.googleapis.com",
    "telemetry.googleapis.com",
  ]
}

resource "google_project_service" "apis" {
  for_each           = toset(local.apis)
  service            = each.value
  disable_on_destroy = false
}

# --- network ----------------------------------------------------------------------------------

resource "google_compute_network" "site" {
  name                    = var.name
  auto_create_subnetworks = false
  depends_on              = [google_project_service.apis]
}

resource "google_compute_subnetwork" "site" {
  name                     = var.name
  network                  = google_compute_network.site.id
  region                   = var.region
  ip_cidr_range            = var.ip_range
  private_ip_google_access = true
}

resource "google_network_connectivity_service_connection_policy" "memorystore" {
  name          = "${var.name}-memorystore"
  location      = var.region
  service_class = "gcp-memorystore"
  network       = google_compute_network.site.id
  psc_config {
    subnetworks = [google_compute_subnetwork.site.id]
  }
}

# --- locks ------------------------------------------------------------------------------------

resource "google_memorystore_instance" "locks" {
  instance_id             = "${var.name}-locks"
  location                = var.region
  mode                    = "CLUSTER_DISABLED"
  shard_count             = 1
  replica_count           = var.replicas
  node_type               = var.node_type
  authorization_mode      = "AUTH_DISABLED"
  transit_encryption_mode = "TRANSIT_ENCRYPTION_DISABLED"
  engine_configs = {
    maxmemory-policy = "noeviction"
  }
  deletion_protection_enabled = true
  desired_auto_created_endpoints {
    network    = google_compute_network.site.id
    project_id = var.project
  }
  depends_on = [google_network_connectivity_service_connection_policy.memorystore]
}

# --- Datastore --------------------------------------------------------------------------------

resource "google_firestore_database" "default" {
  name                    = "(default)"
  location_id             = var.region
  type                    = "DATASTORE_MODE"
  concurrency_mode        = "PESSIMISTIC"
  delete_protection_state = "DELETE_PROTECTION_ENABLED"
  depends_on              = [google_project_service.apis]
}

# --- accounts ---------------------------------------------------------------------------------

resource "google_service_account" "app" {
  account_id   = var.name
  display_name = "The service"
  depends_on   = [google_project_service.apis]
}

resource "google_service_account" "jobs" {
  account_id   = "jobs"
  display_name = "The queue and the schedule call the service as this one"
  depends_on   = [google_project_service.apis]
}

resource "google_project_iam_member" "app" {
  for_each = toset(["roles/datastore.user", "roles/telemetry.metricsWriter"])
  project  = var.project
  role     = each.value
  member   = google_service_account.app.member
}

# The service makes tasks, and lets them have tokens of the other account.
resource "google_cloud_tasks_queue_iam_member" "app" {
  name     = google_cloud_tasks_queue.jobs.name
  location = var.region
  role     = "roles/cloudtasks.enqueuer"
  member   = google_service_account.app.member
}

resource "google_service_account_iam_member" "app" {
  service_account_id = google_service_account.jobs.name
  role               = "roles/iam.serviceAccountUser"
  member             = google_service_account.app.member
}

# --- outbox -----------------------------------------------------------------------------------

# At most half the threads of an instance. Requests that fail are tried three times; jobs that
# fail are retried by the outbox.
resource "google_cloud_tasks_queue" "jobs" {
  name     = "jobs"
  location = var.region
  rate_limits {
    max_dispatches_per_second = 50
    max_concurrent_dispatches = floor(var.threads / 2)
  }
  retry_config {
    max_attempts = 3
    min_backoff  = "5s"
  }
  depends_on = [google_project_service.apis]
}

resource "google_cloud_scheduler_job" "relay" {
  name     = "relay"
  region   = var.region
  schedule = "* * * * *"
  http_target {
    uri         = "${local.site}/userlock/relay"
    http_method = "POST"
    oidc_token {
      service_account_email = google_service_account.jobs.email
      audience              = "${local.site}/userlock/jobs"
    }
  }
  depends_on = [google_cloud_run_v2_service.site]
}

# --- service ----------------------------------------------------------------------------------

resource "google_secret_manager_secret" "session_key" {
  secret_id = "session-key"
  replication {
    auto {}
  }
  depends_on = [google_project_service.apis]
}

resource "google_secret_manager_secret_version" "session_key" {
  secret      = google_secret_manager_secret.session_key.id
  secret_data = var.session_key
}

resource "google_secret_manager_secret_iam_member" "app" {
  secret_id = google_secret_manager_secret.session_key.id
  role      = "roles/secretmanager.secretAccessor"
  member    = google_service_account.app.member
}

resource "google_cloud_run_v2_service" "site" {
  name                 = var.name
  location             = var.region
  ingress              = "INGRESS_TRAFFIC_ALL"
  invoker_iam_disabled = true # main.py checks the callers of jobs
  deletion_protection  = true

  template {
    service_account                  = google_service_account.app.email
    timeout                          = "${var.timeout_seconds}s"
    max_instance_request_concurrency = var.threads
    scaling {
      min_instance_count = 1
      max_instance_count = 50
    }
    vpc_access {
      egress = "PRIVATE_RANGES_ONLY"
      network_interfaces {
        network    = google_compute_network.site.id
        subnetwork = google_compute_subnetwork.site.id
      }
    }
    containers {
      image = var.image
      ports {
        container_port = 8080
      }
      resources {
        cpu_idle = false # metrics are sent between requests as well
        limits = {
          cpu    = "1"
          memory = "512Mi"
        }
      }
      startup_probe {
        http_get {
          path = "/healthz"
          port = 8080
        }
      }
      dynamic "env" {
        for_each = {
          USERLOCK_REQUEST_SECONDS    = tostring(var.timeout_seconds)
          USERLOCK_STORE              = local.store
          USERLOCK_FALLBACK           = "datastore://${var.project}?prefix=${local.prefix}"
          USERLOCK_QUEUE              = local.queue
          OTEL_SERVICE_NAME           = var.name
          OTEL_RESOURCE_ATTRIBUTES    = "gcp.project_id=${var.project},cloud.region=${var.region},cloud.platform=gcp_cloud_run"
          OTEL_EXPORTER_OTLP_ENDPOINT = "https://telemetry.googleapis.com"

          OTEL_PYTHON_EXPORTER_OTLP_HTTP_METRICS_CREDENTIAL_PROVIDER = "gcp_http_credentials"
        }
        content {
          name  = env.key
          value = env.value
        }
      }
      env {
        name = "SECRET_KEY"
        value_source {
          secret_key_ref {
            secret  = google_secret_manager_secret.session_key.secret_id
            version = "latest"
          }
        }
      }
    }
  }
  depends_on = [
    google_firestore_database.default,
    google_project_iam_member.app,
    google_secret_manager_secret_iam_member.app,
    google_secret_manager_secret_version.session_key,
  ]
}

# --- operator ---------------------------------------------------------------------------------

# Runs a command of `userlock` in the network, and logs its output:
#   gcloud run jobs execute operate --region=REGION --wait --args=holder,ann
resource "google_cloud_run_v2_job" "operate" {
  name                = "operate"
  location            = var.region
  deletion_protection = false

  template {
    template {
      service_account = google_service_account.app.email
      max_retries     = 0 # an answer of "no" is an answer
      vpc_access {
        egress = "PRIVATE_RANGES_ONLY"
        network_interfaces {
          network    = google_compute_network.site.id
          subnetwork = google_compute_subnetwork.site.id
        }
      }
      containers {
        image   = var.image
        command = ["userlock"]
        args    = ["doctor", "--quiet"]
        dynamic "env" {
          for_each = {
            USERLOCK_APP   = "main:app"
            USERLOCK_QUEUE = local.queue
            USERLOCK_STORE = local.store
          }
          content {
            name  = env.key
            value = env.value
          }
        }
      }
    }
  }
  depends_on = [google_project_iam_member.app]
}
