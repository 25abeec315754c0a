#!/bin/sh
# The alert policies, the dashboard and the objectives of a project: once, after its first deployment.
# They have not been applied to a real project; a test compares their names with what userlock sends.
#   sh apply.sh PROJECT CHANNEL        CHANNEL: projects/PROJECT/notificationChannels/NUMBER
set -eu
project=$1
channel=$2
cd "$(dirname "$0")"

for policy in alerts/*.yaml; do
  gcloud monitoring policies create --project="$project" --policy-from-file="$policy" \
    --notification-channels="$channel"
done
gcloud monitoring dashboards create --project="$project" --config-from-file=dashboard.json

api=https://monitoring.googleapis.com/v3/projects/$project/services
post() {  # Usage: post URL DATA
  curl --fail --silent --show-error --request POST "$1" --data "$2" \
    --header "Authorization: Bearer $(gcloud auth print-access-token)" \
    --header "Content-Type: application/json"
}
post "$api?serviceId=userlock" '{"displayName": "userlock", "custom": {}}'
for objective in slo-*.json; do
  post "$api/userlock/serviceLevelObjectives" "@$objective"
done
