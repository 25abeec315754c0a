output "site" {
  description = "The address of the service."
  value       = local.site
}

output "store" {
  description = "USERLOCK_STORE, for `userlock doctor` on a machine in the network."
  value       = local.store
}
