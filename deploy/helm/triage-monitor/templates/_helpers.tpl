{{- define "triage.selector" -}}
app.kubernetes.io/name: triage-monitor
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "triage.labels" -}}
{{ include "triage.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
