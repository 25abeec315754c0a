variable "project" {
  description = "The id of an empty project with billing."
  type        = string
}

variable "region" {
  description = "The region of everything."
  type        = string
  default     = "europe-west1"
}

variable "name" {
  description = "The name of the service, and the beginning of others."
  type        = string
  default     = "points"
}

variable "image" {
  description = "The image of the service, by its digest."
  type        = string
  validation {
    condition     = can(regex("@sha256:[0-9a-f]{64}$", var.image))
    error_message = "Name the image by its digest, as REGION-docker.pkg.dev/…@sha256:…"
  }
}

variable "session_key" {
  description = "Signs the sessions: 32 random characters or more. The state keeps it: let nobody read that."
  type        = string
  sensitive   = true
  validation {
    condition     = length(var.session_key) >= 32
    error_message = "The key is shorter than 32 characters."
  }
}

variable "threads" {
  description = "The threads of a worker, as in the Dockerfile: as many requests are let in."
  type        = number
  default     = 16
  validation {
    condition     = var.threads >= 8
    error_message = "One user's requests may hold six threads: give a worker 8 or more."
  }
}

variable "timeout_seconds" {
  description = "The longest request. A lock's lease is as long by default."
  type        = number
  default     = 30
}

variable "node_type" {
  description = "The node of the lock store: the smallest one will do for locks alone."
  type        = string
  default     = "SHARED_CORE_NANO"
}

variable "replicas" {
  description = "The replicas of the lock store."
  type        = number
  default     = 1
}

variable "ip_range" {
  description = "The addresses of the site's network."
  type        = string
  default     = "10.0.0.0/24"
}
