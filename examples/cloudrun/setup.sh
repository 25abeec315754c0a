#!/bin/sh
# The outbox's queue, and the schedule of its relay: once, before the first deployment.  sh setup.sh
set -eu

project=PROJECT
region=REGION
site=https://HOST
app="points@$project.iam.gserviceaccount.com"   # the service's account; it exists
jobs="jobs@$project.iam.gserviceaccount.com"    # the queue and the schedule call as this one

gcloud services enable cloudtasks.googleapis.com cloudscheduler.googleapis.com --project="$project"
gcloud iam service-accounts create jobs --project="$project"

# At most half the threads of an instance. Requests that fail are tried three times; jobs that
# fail are retried by the outbox.
gcloud tasks queues create jobs --project="$project" --location="$region" \
  --max-dispatches-per-second=50 --max-concurrent-dispatches=8 --max-attempts=3 --min-backoff=5s

# The service makes tasks, and lets them have tokens of the other account.
gcloud tasks queues add-iam-policy-binding jobs --project="$project" --location="$region" \
  --member="serviceAccount:$app" --role=roles/cloudtasks.enqueuer
gcloud iam service-accounts add-iam-policy-binding "$jobs" --project="$project" \
  --member="serviceAccount:$app" --role=roles/iam.serviceAccountUser

# The service sends its metrics: alerts for them are in ../monitoring.
gcloud services enable telemetry.googleapis.com --project="$project"
gcloud projects add-iam-policy-binding "$project" \
  --member="serviceAccount:$app" --role=roles/telemetry.metricsWriter

gcloud scheduler jobs create http relay --project="$project" --location="$region" \
  --schedule="* * * * *" --uri="$site/userlock/relay" --http-method=POST \
  --oidc-service-account-email="$jobs" --oidc-token-audience="$site/userlock/jobs"
