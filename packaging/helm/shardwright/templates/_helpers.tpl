{{- /* Conditions that values.schema.json cannot express. */}}
{{- define "shardwright.check" -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" .Release.Name) }}
{{- fail (printf "the release name %s cannot begin the names of services: use lower-case letters, digits and hyphens, and begin with a letter" .Release.Name) }}
{{- end }}
{{- $names := dict }}
{{- range $shard := .Values.shards }}
{{- if hasKey $names $shard.name }}
{{- fail (printf "shards: two shards are called %s; every shard needs a name of its own" $shard.name) }}
{{- end }}
{{- $_ := set $names $shard.name true }}
{{- end }}
{{- if .Values.routers.autoscaling.enabled }}
{{- if gt (int .Values.routers.replicas) (int .Values.routers.autoscaling.maxReplicas) }}
{{- fail (printf "routers.replicas is %d, and routers.autoscaling.maxReplicas only %d: the autoscaler begins with replicas and needs at least as many" (int .Values.routers.replicas) (int .Values.routers.autoscaling.maxReplicas)) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "shardwright.name" -}}
{{ .Release.Name | trunc 29 | trimSuffix "-" }}
{{- end }}

{{- define "shardwright.labels" -}}
app.kubernetes.io/name: shardwright
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "shardwright.image" -}}
image: {{ printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{- /* The ports of a set: .port of its daemons, .mongodPort of its mongods. */}}
{{- define "shardwright.port" -}}
{{ if eq .name "config" }}27019{{ else }}27018{{ end }}
{{- end }}
{{- define "shardwright.mongodPort" -}}
{{ if eq .name "config" }}28019{{ else }}28018{{ end }}
{{- end }}
{{- define "shardwright.role" -}}
{{ if eq .name "config" }}configd{{ else }}shardd{{ end }}
{{- end }}

{{- /* The domain of a set's pods: .root and .name. */}}
{{- define "shardwright.domain" -}}
{{ include "shardwright.name" .root }}-{{ .name }}.{{ .root.Release.Namespace }}.svc.{{ .root.Values.clusterDomain }}
{{- end }}

{{- /* The address of a set's first daemon, which knows all others. */}}
{{- define "shardwright.firstDaemon" -}}
{{ include "shardwright.name" .root }}-{{ .name }}-0.{{ include "shardwright.domain" . }}:{{ include "shardwright.port" . }}
{{- end }}

{{- define "shardwright.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "shardwright.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- /* Secrets become readable by the group of the pod, which mongod and daemons refuse; copies are private. */}}
{{- define "shardwright.secretsContainer" -}}
- name: secrets
  {{- include "shardwright.image" .root | nindent 2 }}
  command:
    - bash
    - -ec
    - |
      umask 077
      cp /secrets/key/key /etc/shardwright/key
      {{- if .root.Values.security.tls.enabled }}
      cat /secrets/tls/tls.crt /secrets/tls/tls.key > /etc/shardwright/host.pem
      cp /secrets/tls/ca.crt /etc/shardwright/ca.pem
      {{- end }}
  securityContext:
    {{- include "shardwright.containerSecurity" . | nindent 4 }}
  volumeMounts:
    - {name: files, mountPath: /etc/shardwright}
    - {name: key, mountPath: /secrets/key, readOnly: true}
    {{- if .root.Values.security.tls.enabled }}
    - {name: tls, mountPath: /secrets/tls, readOnly: true}
    {{- end }}
{{- end }}

{{- define "shardwright.secretVolumes" -}}
- name: files
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
- name: tmp
  emptyDir: {medium: Memory, sizeLimit: 64Mi}
- name: key
  secret: {secretName: {{ .root.Values.security.keySecret | quote }}, defaultMode: 0400}
{{- if .root.Values.security.tls.enabled }}
- name: tls
  secret: {secretName: {{ include "shardwright.tlsSecret" . | quote }}, defaultMode: 0400}
{{- end }}
{{- end }}

{{- define "shardwright.tlsSecret" -}}
{{ if .root.Values.security.tls.issuer.name }}{{ include "shardwright.name" .root }}-tls{{ else }}{{ .root.Values.security.tls.secret }}{{ end }}
{{- end }}

{{- define "shardwright.daemonOptions" -}}
- --bind-ip=0.0.0.0
- --key-file=/etc/shardwright/key
- --metrics-port=9216
- --metrics-bind-ip=0.0.0.0
{{- if .root.Values.security.tls.enabled }}
- --tls-mode=require
- --tls-certificate-key-file=/etc/shardwright/host.pem
- --tls-ca-file=/etc/shardwright/ca.pem
{{- end }}
{{- end }}

{{- define "shardwright.probes" -}}
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 5
  failureThreshold: 2
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  initialDelaySeconds: 20
  periodSeconds: 10
  failureThreshold: 6
{{- end }}

{{- /* .root, and .component: the name of a set, or router. */}}
{{- define "shardwright.affinity" -}}
podAntiAffinity:
  {{- if eq .root.Values.antiAffinity "required" }}
  requiredDuringSchedulingIgnoredDuringExecution:
    - topologyKey: {{ .root.Values.topologyKey }}
      labelSelector:
        matchLabels:
          {{- include "shardwright.labels" .root | nindent 10 }}
          app.kubernetes.io/component: {{ .component | quote }}
  {{- else }}
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: {{ .root.Values.topologyKey }}
        labelSelector:
          matchLabels:
            {{- include "shardwright.labels" .root | nindent 12 }}
            app.kubernetes.io/component: {{ .component | quote }}
  {{- end }}
{{- end }}
